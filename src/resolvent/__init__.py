from resolvent.patterns import *
