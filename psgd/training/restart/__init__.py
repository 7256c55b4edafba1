"""A run that is begun again in the same job: after the death of a rank that it does not survive, or with more workers.

Owns the communicators of one attempt, which end together (`family`), who acts and who stands by (`crew`,
`succession`), how a run is cut down or grows (`fitting`), and the attempts themselves (`attempts`). Begin with
`attempts`.
"""
