"""How a relay is built, started, reloaded, watched and drained."""
