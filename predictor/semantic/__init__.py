"""The second opinion: a small sentence encoder, fine-tuned to rank prompts by their answers' length."""
