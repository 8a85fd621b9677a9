"""Data sets on the device: found, decoded once, memory-mapped, partitioned among clients, augmented in whole batches.

* `registry`: the table of data sets, and the types of data
* `locate`: the search for a set's files, and the message if there are none
* `decoded_cache`, `atomic_cache`, `content`: `open_data` decodes once into the cache, then maps
* `parquet_images`, `torchvision_files`, `class_folders`, `tinyimagenet`, `scikit_learn`, `python_topics`,
  `synthetic`, `shakespeare`: the readers; `images` decodes what three of them read
* `partition`, `json_partition`: partitions as pure functions
* `partition_registry`: the table of kinds of partition
* `partitioning`: `partition_data` and `cached_partition`, a partition from its configuration
* `augment`, `resized_crops`: stored batches to those that models take

Nothing is imported here, so that the table and the search can be used without torch.
"""
