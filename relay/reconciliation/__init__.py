"""What an outage cost, given back: reconstructed events, from the API of the sender."""
