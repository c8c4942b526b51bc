"""The designer's picks, trained: do hops and congestion predict accuracy?"""
