"""Multi-head latent attention (MLA): found by dataflow, absorbed for decode, split for prefill."""
