"""Keys of the clients and how they share the data."""

from edgefl.config.field import Keys, key

DATA = "Clients and their data"
"""Heading of these keys in the command line's help."""


class ClientsKeys(Keys):
    """Keys of the clients and how they share the data."""

    clients: int = key(20, DATA, "Number of clients in the population.", ge=1, le=10**9)
    partition: str = key(
        "dirichlet:0.5",
        DATA,
        "How clients share the samples. iid: evenly; dirichlet:A: uneven labels, more so for small A; classes:K: K labels each; "
        "natural: by the data set's owners; index:S or index:S:A: S samples per client (uneven labels), for any number of clients; "
        "flwr:NAME(keyword=value, …): a partitioner of flwr-datasets.",
        "SPEC",
    )
    data_share: float = key(1.0, DATA, "Share of its training samples that each client uses.", gt=0, le=1)
    validation_share: float = key(
        0.0,
        DATA,
        "Share of the training samples that no client has; models are evaluated on it instead of the test samples.",
        ge=0,
        lt=1,
    )
    permute_labels: bool = key(False, DATA, "Each client has its own order of labels; accuracy is the mean over clients. [no]")
