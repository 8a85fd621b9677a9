"""fedadam: the client side, a linear classifier of handwritten digits."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

app = ClientApp()
digits = load_digits()


def load(msg: Message, context: Context):
    """The model that was sent, and this node's images and labels."""
    model = torch.nn.Linear(64, 10)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    own = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return model, torch.tensor(digits.data[own] / 16, dtype=torch.float32), torch.tensor(digits.target[own])


@app.train()
def train(msg: Message, context: Context):
    model, images, labels = load(msg, context)
    optimizer = torch.optim.SGD(model.parameters(), lr=context.run_config["learning-rate"])
    for _ in range(context.run_config["local-steps"]):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model, images, labels = load(msg, context)
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    metrics = MetricRecord({"eval_acc": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
