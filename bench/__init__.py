"""What Darkroom costs and gives, measured: one script a question, results under results/."""
