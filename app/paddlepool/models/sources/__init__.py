"""Remote model repositories: copied to the local one and verified before anything is served."""
