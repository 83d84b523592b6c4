"""One module per `paddlepool` command: configure(parser), run(args)."""
