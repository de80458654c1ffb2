"""The lab: lab nodes and a release server as containers on this machine."""
