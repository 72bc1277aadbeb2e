"""The paper's theory, computed: the noisy quadratic model and its propositions.

``quadratic`` has the model and the closed forms, ``simulation`` plays it, ``periodic``
is exact where the paper stops (any interval, momentum, schedules), ``propositions``
tells which claims hold, ``checks`` sets closed forms against simulation.
"""
