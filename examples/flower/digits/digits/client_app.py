"""digits: the client side."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import Net, load_data
from digits.task import test as test_fn
from digits.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on this node's data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    trainloader, _ = load_data(node["partition-id"], node["num-partitions"], config["batch-size"])
    loss = train_fn(model, trainloader, config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the model on this node's data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node = context.node_config
    _, testloader = load_data(node["partition-id"], node["num-partitions"], context.run_config["batch-size"])
    loss, accuracy = test_fn(model, testloader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
