module holdfast.test/server

go 1.21
