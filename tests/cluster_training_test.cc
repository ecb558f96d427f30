#include "tests/support/lifecycle_fixture.h"
