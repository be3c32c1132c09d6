"""Put this folder on PYTHONPATH, and processes of a node obey the faults that its environment names."""

from pulsetrain.faults import arithmetic, links

links.install()
arithmetic.install()
