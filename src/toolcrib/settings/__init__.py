"""Files and the environment to frozen options: `loader.load` gives `options.Settings`; `places` says where it looks."""
