"""`relay endpoint`: the webhook endpoint, through the sender's API."""
