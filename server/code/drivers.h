#pragma once
/* The texts of driver.py and driver.js, made into C by the build. */

extern const char code_driver_python[], code_driver_node[];
