module qtls.dev/qtls/e2e/probe

go 1.26
