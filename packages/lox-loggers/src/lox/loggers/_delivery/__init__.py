"""The path of records on the host: from a delivery through the queue to a writer."""
