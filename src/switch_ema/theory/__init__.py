"""The paper's theory, computed: the noisy quadratic model and its propositions.

``quadratic`` has the model and the closed forms, ``simulation`` simulates it,
``periodic`` is exact where the paper stops (any interval, momentum, schedules),
``propositions`` reports which claims hold, ``checks`` compares closed forms with
simulation.
"""
