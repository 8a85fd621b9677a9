"""Data sets on the device: found, decoded once, memory-mapped, shared among clients and augmented in whole batches.

* `sets`       the table of data sets and what a data set is
* `find`       where a set may be, and the message when it is nowhere
* `store`      `open_data`: decode once into the cache, then map
* `images`, `official`, `digits`   the readers: Parquet, torchvision's own files, scikit-learn's digits
* `partition`, `epsilon`   who holds which examples, as pure functions
* `shares`     `share_out` and `cached_shares`: a partition from its configuration
* `augment`    uint8 batches to float batches

Nothing is imported here, so that the table and the search can be used without torch.
"""
