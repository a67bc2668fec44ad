"""Reading the residual stream: what was written, what it says, and which write says it."""
