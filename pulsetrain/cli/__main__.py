from pulsetrain.cli import main

main()
