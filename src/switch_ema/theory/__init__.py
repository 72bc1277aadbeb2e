"""The paper's theory, computed: the noisy quadratic model and its propositions."""
