"""fedadam: the server side, which steps by Adam (Reddi et al., ICLR 2021)."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAdam(fraction_train=config["fraction-train"], eta=config["server-learning-rate"], tau=1e-2)
    arrays = ArrayRecord(torch.nn.Linear(64, 10).state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config["num-server-rounds"])
