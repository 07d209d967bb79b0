"""What is asked of clients (`queries`), of whom (`clients`), and what a run promises (`plan`)."""
