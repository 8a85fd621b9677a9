"""digits: model, data, training and test of the app."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DIGITS = load_digits()


class Net(nn.Module):
    """A small convolutional network for images of 8x8."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc(x.flatten(1))


def dataset(keep):
    """The handwritten digits of scikit-learn whose index ``keep`` accepts; every tenth is for tests."""
    chosen = [index for index in range(len(DIGITS.target)) if keep(index)]
    images = torch.tensor(DIGITS.images[chosen] / 16, dtype=torch.float32).unsqueeze(1)
    return TensorDataset(images, torch.tensor(DIGITS.target[chosen]))


def load_data(partition_id, num_partitions, batch_size):
    """Training and test examples of one partition: every num_partitions-th digit."""
    train = dataset(lambda index: index % 10 and index // 10 % num_partitions == partition_id)
    test = dataset(lambda index: not index % 10 and index // 10 % num_partitions == partition_id)
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)


def load_test_data():
    """All test examples, for the server."""
    return DataLoader(dataset(lambda index: not index % 10), batch_size=128)


def train(net, trainloader, epochs, lr):
    """Train the model, and return its mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


def test(net, testloader):
    """Mean loss and accuracy of the model."""
    net.eval()
    loss, correct, count = 0.0, 0, len(testloader.dataset)
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images)
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / count, correct / count
