"""Which member of a cluster dispatches a sink, and until when; performs no I/O of its own."""
