#include <abx/commands.h>

ABX_COMMAND(hello, "Say hello.", ABX_STRING(name, .fallback = "World"))
{
    return abx_return_string(call, "Hello, %s!", abx_string(call, "name"));
}
