//go:build tools

// Package tools names the programs whose dependencies this module pins.
package tools

import _ "github.com/prometheus/prometheus/cmd/promtool"
