// Package statepb holds the generated messages of the metadata log. state.proto is the source.
package statepb

//go:generate go run ./gen
