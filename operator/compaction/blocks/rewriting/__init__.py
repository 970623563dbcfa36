"""BlockRewrite: from a job to one commit of the index; `rewriter` is the door."""
