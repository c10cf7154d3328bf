// Package version holds the version of Q-TLS, the one place that the images' tags, the chart and the programs read.
package version

// Version is the release that this tree builds, as a semantic version without a leading "v".
const Version = "0.1.0"
