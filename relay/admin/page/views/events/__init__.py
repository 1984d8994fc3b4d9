"""Events: their list and filter, one event, bulk changes and replays."""
