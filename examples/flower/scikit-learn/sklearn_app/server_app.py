"""scikit-learn: the server side."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([np.zeros((10, 64)), np.zeros(10)])
    FedAvg(fraction_train=0.5).start(
        grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"]
    )
