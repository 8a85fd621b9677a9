"""Model and data of a Flower app: scikit-learn's digits, shared out evenly."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition: int, partitions: int) -> tuple[DataLoader, DataLoader]:
    """Examples to train on and to evaluate on of one partition."""
    digits = load_digits()
    images = torch.tensor(digits.data[partition::partitions] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[partition::partitions])
    train, test = random_split(TensorDataset(images, labels), [0.8, 0.2], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=256)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    optimizer, total = torch.optim.SGD(net.parameters(), lr=lr), 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """(mean loss, accuracy)"""
    with torch.no_grad():
        images, labels = next(iter(loader))
        scores = net(images)
        loss = nn.functional.cross_entropy(scores, labels).item()
        return loss, (scores.argmax(1) == labels).float().mean().item()
