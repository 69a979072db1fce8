"""Gates inside of frameworks, one module each; nothing else imports them, and each needs its framework alone.

`flower`, `nvflare`, `opacus`, `transformers` (with peft), `lightning`, `accelerate`: install `gradleak[flower]` and so on.
"""
