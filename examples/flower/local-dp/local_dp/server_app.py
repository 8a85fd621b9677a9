"""local-dp: the server side."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord(torch.nn.Linear(64, 10).state_dict())
    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"])
