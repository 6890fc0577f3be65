"""What people look at: figures and reports, made from the files that runs leave behind."""
