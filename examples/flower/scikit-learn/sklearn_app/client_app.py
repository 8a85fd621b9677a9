"""scikit-learn: the client side, a logistic regression whose coefficients travel as NumPy arrays."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

app = ClientApp()
all_images, all_labels = load_digits(return_X_y=True)


def load(msg: Message, context: Context):
    """The model that was sent, and this node's images and labels."""
    own = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    model = LogisticRegression(warm_start=True, max_iter=context.run_config["local-iterations"])
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    model.classes_ = range(10)
    return model, all_images[own] / 16, all_labels[own]


@app.train()
def train(msg: Message, context: Context):
    model, images, labels = load(msg, context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few iterations a round are meant
        model.fit(images, labels)
    arrays = ArrayRecord([model.coef_, model.intercept_])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model, images, labels = load(msg, context)
    metrics = MetricRecord({"eval_acc": model.score(images, labels), "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
