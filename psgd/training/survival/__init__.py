"""What a run does when a worker dies: the others take its samples, each exactly once, and the run goes on.

Owns a worker's samples ahead (`ahead`), the server's account of all of them (`ledger`), a worker's batches (`course`),
what is written and counted of a death (`survival`), and who does what rank 0 did (`duties`). Begin with `survival`.
"""
