"""One value, or several by name: the inputs of samples. The functions are those of onnxgrad, which does without the rest of edgefl."""

from edgefl.onnxgrad.fields import Fields as Fields
from edgefl.onnxgrad.fields import each as each
from edgefl.onnxgrad.fields import first as first
from edgefl.onnxgrad.fields import listed as listed
from edgefl.onnxgrad.fields import named as named
from edgefl.onnxgrad.fields import rows as rows
from edgefl.onnxgrad.fields import unnamed as unnamed
