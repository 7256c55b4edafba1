"""Where to cut a model into stages. Begin with `partition`; `measure` has what it needs to know of the layers."""
