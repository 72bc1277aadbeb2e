"""What a comparison found, told in the terminal and on one page of HTML."""
