"""``SaveLogger``: one ``.npy`` file for each column."""
