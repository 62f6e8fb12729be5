//go:build tools

// Package tools names the program this module locks; nothing here is compiled by itself.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
