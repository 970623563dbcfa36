//go:build tools

// Package tools names the programs whose dependencies this module pins.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
