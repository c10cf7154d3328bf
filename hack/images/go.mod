module qtls.dev/qtls/hack/images

go 1.27.0

toolchain go1.27.4

require github.com/CycloneDX/cyclonedx-go v0.12.0
